"use strict";
// Each picture of the page can be kept, as it looks now: as SVG, or drawn as PNG.
// Nothing is fetched and nothing leaves the page but the file that was asked for.
{
	const looks = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-dasharray", "stroke-linejoin", "opacity",
		"paint-order", "font-family", "font-size", "font-weight", "text-anchor"];

	// alone writes a picture that needs no page: with its looks at each mark.
	const alone = (svg) => {
		const copy = svg.cloneNode(true);
		const marks = copy.querySelectorAll("*");
		svg.querySelectorAll("*").forEach((mark, i) => {
			if (["g", "title", "desc"].includes(mark.localName)) return;
			const seen = getComputedStyle(mark);
			marks[i].setAttribute("style", looks.map((name) => name + ":" + seen.getPropertyValue(name)).join(";"));
		});
		const ground = document.createElementNS(svg.namespaceURI, "rect");
		ground.setAttribute("width", "100%");
		ground.setAttribute("height", "100%");
		ground.setAttribute("fill", getComputedStyle(document.body).backgroundColor);
		copy.querySelector("desc").after(ground);
		copy.removeAttribute("class");
		return new XMLSerializer().serializeToString(copy);
	};

	const keep = (blob, name) => {
		const link = document.createElement("a");
		link.href = URL.createObjectURL(blob);
		link.download = name;
		link.click();
		setTimeout(() => URL.revokeObjectURL(link.href), 60000);
	};

	const draw = (svg, name) => {
		const image = new Image(), sheet = document.createElement("canvas"), size = svg.viewBox.baseVal;
		image.onload = () => {
			[sheet.width, sheet.height] = [2 * size.width, 2 * size.height];
			sheet.getContext("2d").drawImage(image, 0, 0, sheet.width, sheet.height);
			sheet.toBlob((blob) => keep(blob, name), "image/png");
		};
		image.src = "data:image/svg+xml;charset=utf-8," + encodeURIComponent(alone(svg));
	};

	for (const svg of document.querySelectorAll("figure svg.plot")) {
		const figure = svg.closest("figure"), title = figure.querySelector("h3").textContent;
		const name = title.toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "").slice(0, 60) || figure.id;
		const bar = document.createElement("p");
		bar.className = "keep";
		for (const [form, save] of [
			["SVG", () => keep(new Blob([alone(svg)], { type: "image/svg+xml" }), name + ".svg")],
			["PNG", () => draw(svg, name + ".png")],
		]) {
			const button = document.createElement("button");
			button.type = "button";
			button.textContent = form;
			button.setAttribute("aria-label", "Keep “" + title + "” as " + form);
			button.addEventListener("click", save);
			bar.append(button);
		}
		figure.append(bar);
	}
}
